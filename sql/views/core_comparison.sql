-- Temporal cores head to head: means over seeds of what temporal_core_sweep measured, with the spread of the
-- reward; one line per core and profile.
create or replace view core_comparison as
select
    profile,
    cell as core,
    count(distinct seed) filter (name = 'reward_ema' and ended_well) as seeds,
    round(avg(value) filter (name = 'reward_ema' and ended_well), 4) as reward_ema,
    round(stddev_samp(value) filter (name = 'reward_ema' and ended_well), 4) as reward_ema_deviation,
    round(avg(value) filter (name = 'steps_per_second' and ended_well), 1) as steps_per_second,
    round(avg(value) filter (name = 'forward_ms' and ended_well), 3) as forward_ms,
    round(avg(value) filter (name = 'wall_seconds' and ended_well), 1) as wall_seconds,
    max(step) as steps,
    count(distinct (repeat, seed)) filter (not ended_well) as failed,
    max(outcome) filter (not ended_well) as outcome,
    max(date_trunc('second', recorded_at)) as recorded_at,
    hardware
from (select *, coalesce(outcome, 'ok') = 'ok' as ended_well from latest_cells where benchmark = 'temporal_core_sweep')
group by profile, core, hardware
order by max(max(recorded_at)) over (partition by profile) desc, profile, reward_ema desc nulls last;
