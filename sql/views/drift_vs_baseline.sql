-- The latest run of every benchmark against the median of its last 7 earlier runs of the same profile and hardware.
-- slowdown_percent is how much more time it takes (or memory); 3 earlier runs are the least that give a verdict.
-- A cell drifts when it is more than 18 % slower; a benchmark, when the geometric mean over its cells is more than 11 %
-- slower. Figures of false alarms and of what is found: docs/how-to/nights.md.
create or replace view drift_vs_baseline as
with ordered as (
    select *, row_number() over (partition by benchmark, profile, cell, name, hardware order by recorded_at desc) as age
    from benchmark_cells where value > 0
),
compared as (
    select
        benchmark, profile, cell, name, hardware,
        any_value(unit) as unit,
        max(value) filter (age = 1) as value,
        median(value) filter (age between 2 and 8) as baseline,
        count(*) filter (age between 2 and 8) as earlier_runs,
        any_value(slower_is) as slower_is,
        max(recorded_at) as recorded_at,
        max(run_id) filter (age = 1) as run_id
    from ordered group by benchmark, profile, cell, name, hardware
),
judged as (
    select *, case slower_is when 'more' then value / baseline else baseline / value end as slowdown
    from compared where earlier_runs >= 3
)
select
    benchmark,
    profile,
    cell,
    name,
    round(value, 4) as value,
    round(baseline, 4) as baseline,
    unit,
    round(100 * (slowdown - 1), 1) as slowdown_percent,
    round(100 * (exp(avg(ln(slowdown)) over together) - 1), 1) as benchmark_slowdown_percent,
    slowdown > 1.18 as cell_drifts,
    exp(avg(ln(slowdown)) over together) > 1.11 as benchmark_drifts,
    earlier_runs,
    date_trunc('second', recorded_at) as recorded_at,
    run_id,
    hardware
from judged
window together as (partition by benchmark, profile, name, hardware)
order by benchmark_slowdown_percent desc, slowdown_percent desc;
