-- Changes of every benchmark's figures from run to run, newest first; change_percent is against the run before.
create or replace view benchmark_history as
select
    benchmark,
    profile,
    cell,
    name,
    round(value, 4) as value,
    unit,
    round(100 * (value / nullif(lag(value) over earlier, 0) - 1), 1) as change_percent,
    round(low, 4) as low,
    round(high, 4) as high,
    repeats,
    coalesce(outcome, 'ok') as outcome,
    date_trunc('second', recorded_at) as recorded_at,
    revision,
    run_id,
    hardware
from benchmark_cells
window earlier as (partition by benchmark, profile, cell, name, hardware order by recorded_at)
order by benchmark, profile, cell, name, recorded_at desc;
