-- One line per run, profile, cell and number: the median over its repeats and seeds, their spread, and how its repeats ended.
-- slower_is is the direction that is worse: more for times and memory, less for speeds and rewards.
create or replace view benchmark_cells as
select
    benchmark,
    profile_of(benchmarks.profile, parameters) as profile,
    cell,
    name,
    hardware,
    run_id,
    median(value) as value,
    min(value) as low,
    max(value) as high,
    any_value(unit) as unit,
    case when more_is_worse(any_value(unit)) then 'more' else 'less' end as slower_is,
    count(value) as repeats,
    count(*) filter (coalesce(outcome, 'ok') <> 'ok') as failed,
    max(outcome) filter (outcome <> 'ok') as outcome,
    max(detail) as detail,
    any_value(parameters) as parameters,
    any_value(revision) as revision,
    any_value(config_hash) as config_hash,
    max(recorded_at) as recorded_at
from benchmarks
group by benchmark, profile_of(benchmarks.profile, parameters), cell, name, hardware, run_id;
