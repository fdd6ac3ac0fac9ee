-- One line per run: where it stands and how it was made.
create or replace view run_summary as
with last_metrics as (
    select
        run_id,
        max(step) as last_step,
        max_by(value, step) filter (name = 'reward_ema') as reward_ema,
        min(recorded_at) as first_row_at,
        max(recorded_at) as last_row_at,
        any_value(seed) as seed,
        any_value(hardware) as hardware,
        any_value(revision) as revision,
        any_value(config_hash) as config_hash
    from metrics group by run_id
)
select
    last_metrics.run_id,
    runs.status,
    last_step,
    last_metrics.reward_ema,
    round(run_speed.steps_per_second) as mean_sps,
    (select count(*) from checkpoints where checkpoints.run_id = last_metrics.run_id) as checkpoints,
    first_row_at,
    last_row_at,
    last_metrics.seed,
    last_metrics.config_hash,
    last_metrics.revision,
    last_metrics.hardware
from last_metrics
left join runs on runs.run_id = last_metrics.run_id
left join run_speed on run_speed.run_id = last_metrics.run_id
order by last_row_at desc;
