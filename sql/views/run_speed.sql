-- Speed of every run: its decisions by their time. The mean of the updates' speeds would let the
-- fast ones count for more than their share of the time.
create or replace view run_speed as
with updates as (
    select run_id, step, value as sps,
           step - coalesce(lag(step) over (partition by run_id order by step), 0) as decisions
    from metrics where name = 'sps' and value > 0
)
select run_id, sum(decisions) / nullif(sum(decisions / sps), 0) as steps_per_second
from updates group by run_id;
