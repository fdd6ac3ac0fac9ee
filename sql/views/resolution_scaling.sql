-- Cost of more rays: every number of resolution_sweep by resolution, with its factor against the smallest of its profile.
create or replace view resolution_scaling as
with sizes as (
    select
        profile, cell, name, hardware,
        try_cast(split_part(cell, 'x', 1) as bigint) * try_cast(split_part(cell, 'x', 2) as bigint) as rays,
        median(value) as value,
        any_value(unit) as unit,
        count(value) as repeats,
        count(*) filter (coalesce(outcome, 'ok') <> 'ok') as failed,
        max(outcome) filter (outcome <> 'ok') as outcome
    from latest_cells where benchmark = 'resolution_sweep'
    group by profile, cell, name, hardware
)
select
    profile,
    cell as resolution,
    rays,
    name,
    round(value, 4) as value,
    unit,
    round(value / nullif(first_value(value) over smallest, 0), 3) as times_smallest,
    round(rays / first_value(rays) over smallest, 2) as times_rays,
    repeats,
    coalesce(outcome, 'ok') as outcome,
    failed,
    hardware
from sizes
window smallest as (partition by profile, name, hardware order by rays)
order by profile, name, hardware, rays;
