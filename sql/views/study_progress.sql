-- State of every study: trials by state, the best so far and its settings.
create or replace view study_progress as
select
    trials.study,
    any_value(studies.learner) as learner,
    any_value(studies.status) as status,
    count(*) as trials,
    count(*) filter (state = 'complete') as complete,
    count(*) filter (state = 'pruned') as pruned,
    count(*) filter (state = 'failed') as failed,
    count(*) filter (state = 'running') as running,
    any_value(studies.best_trial) as best_trial,
    any_value(studies.best_value) as best_value,
    any_value(studies.best_params) as best_params,
    round(sum(trials.wall_time_seconds) / 3600, 2) as trial_hours,
    max(date_trunc('second', trials.recorded_at)) as recorded_at
from trials left join studies on studies.study = trials.study
group by trials.study
order by recorded_at desc;
