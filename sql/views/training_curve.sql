-- One line per run and recorded step: how training went. wall_time_seconds is the time at work until then, as the speeds
-- give it: pauses between attempts are none of it.
create or replace view training_curve as
with curve as (
    select
        run_id,
        step,
        max(value) filter (name = 'reward_ema') as reward_ema,
        max(value) filter (name = 'episode_return') as episode_return,
        max(value) filter (name = 'episode_length') as episode_length,
        max(value) filter (name = 'view_gain') as view_gain,
        max(value) filter (name = 'collision') as collision,
        max(value) filter (name = 'policy_loss') as policy_loss,
        max(value) filter (name = 'value_loss') as value_loss,
        max(value) filter (name = 'entropy') as entropy,
        max(value) filter (name = 'approx_kl') as approx_kl,
        max(value) filter (name = 'explained_variance') as explained_variance,
        max(value) filter (name = 'sps') as sps,
        any_value(seed) as seed,
        any_value(config_hash) as config_hash,
        max(recorded_at) as recorded_at
    from metrics
    group by run_id, step
    having max(value) filter (name = 'reward_ema') is not null
),
timed as (
    select *, (step - coalesce(lag(step) over (partition by run_id order by step), 0)) / nullif(sps, 0) as seconds
    from curve
)
select
    run_id,
    step,
    round(sum(seconds) over (partition by run_id order by step), 1) as wall_time_seconds,
    * exclude (run_id, step, seconds)
from timed
order by run_id, step;
