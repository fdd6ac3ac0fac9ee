-- The completed trials of every study, best first by the direction of its first objective; place 1 is the study's best.
-- Those that break a constraint come after all others.
create or replace view ranked_trials as
with directed as (
    select
        trials.*,
        coalesce(json_extract_string(studies.directions, '$[0]'), 'maximize') as direction,
        json_extract_string(studies.objectives, '$[0]') as objective
    from trials left join studies on studies.study = trials.study
    where state = 'complete' and value is not null
)
select
    study,
    row_number() over (
        partition by study
        order by coalesce(feasible, true) desc, case direction when 'minimize' then -value else value end desc, trial
    ) as place,
    trial,
    objective,
    direction,
    value,
    params,
    reward_ema,
    sps,
    memory_gib,
    collisions_per_minute,
    feasible,
    run_id
from directed
order by study, place;
