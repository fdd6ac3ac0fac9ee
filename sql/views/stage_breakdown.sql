-- Where the time of a run goes: mean milliseconds per stage and its share of the time of all stages.
-- A stage inside another (update/policy_evaluation/encoder) is counted in that other one and not again in the sum.
create or replace view stage_breakdown as
select
    run_id,
    stage,
    round(avg(milliseconds), 3) as mean_ms,
    round(100 * sum(coalesce(total_milliseconds, milliseconds))
        / sum(sum(coalesce(total_milliseconds, milliseconds)) filter (where stage not like '%/%/%')) over (partition by run_id), 1) as percent,
    count(*) as samples
from stage_timings
group by run_id, stage
order by run_id, sum(coalesce(total_milliseconds, milliseconds)) desc;
