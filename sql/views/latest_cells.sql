-- The latest figure of every repeat of every cell, by hardware; what an earlier run of the same cell measured is history.
create or replace view latest_cells as
select *
from benchmarks
qualify row_number() over (
    partition by benchmark, cell, repeat, seed, name, hardware order by recorded_at desc
) = 1;
