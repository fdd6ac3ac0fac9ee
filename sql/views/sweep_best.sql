-- The best cell of every sweep and profile by each of its numbers: its mean over seeds and repeats, and its lead over the next.
create or replace view sweep_best as
with means as (
    select
        benchmark, profile, name, cell, hardware,
        avg(value) as mean,
        count(value) as repeats,
        case when more_is_worse(any_value(unit)) then -1 else 1 end as sign,
        any_value(unit) as unit
    from latest_cells where isfinite(value) and coalesce(outcome, 'ok') = 'ok'
    group by benchmark, profile, name, cell, hardware
),
ranked as (
    select *, lead(mean) over best as second, lead(cell) over best as second_cell, count(*) over sweep as cells,
           row_number() over best as rank
    from means
    window sweep as (partition by benchmark, profile, name, hardware), best as (sweep order by sign * mean desc)
)
select
    benchmark as sweep,
    profile,
    name,
    cell as best,
    round(mean, 4) as mean,
    unit,
    repeats,
    second_cell as next_best,
    round(second, 4) as next_mean,
    round(100 * sign * (mean - second) / nullif(abs(second), 0), 1) as lead_percent,
    cells,
    hardware
from ranked where rank = 1 and cells > 1
order by sweep, profile, name;
