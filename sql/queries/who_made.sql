-- Origin: host, user, Dagster run and revision of runs, versions, evaluations, comparisons, decisions, studies, nights.
-- what: a run, version, evaluation, comparison, study or night; by default the latest fifty
with made as (
    select 'run' as kind, run_id as id, run_id, host, user, dagster_run_id, revision, recorded_at from runs
    union all select 'version', version, run_id, host, user, dagster_run_id, revision, recorded_at from models
    union all select 'evaluation', evaluation_id, run_id, host, user, dagster_run_id, revision, recorded_at from evaluations
    union all select distinct 'comparison', comparison_id, run_id, host, user, dagster_run_id, revision, recorded_at
              from comparisons
    union all select 'decision', version, run_id, host, user, dagster_run_id, revision, recorded_at from promotions
    union all select 'study', study, run_id, host, user, dagster_run_id, revision, recorded_at from studies
    union all select 'night', night, run_id, host, user, dagster_run_id, revision, recorded_at from nights
)
select kind, id, host, user, dagster_run_id, rtrim(revision, '+') as revision, ends_with(revision, '+') as dirty, run_id,
       date_trunc('second', recorded_at) as recorded_at
from made where getvariable('what') is null or getvariable('what') in (id, run_id)
order by made.recorded_at desc, kind, id limit 50;
