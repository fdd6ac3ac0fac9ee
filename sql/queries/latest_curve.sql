-- The reward curve of the latest run, twenty points.
with latest as (select run_id from run_summary limit 1),
curve as (select step, reward_ema, view_gain, collision, sps, ntile(20) over (order by step) as part
          from training_curve join latest using (run_id))
select max(step) as step, avg(reward_ema) as reward_ema, avg(view_gain) as view_gain,
       avg(collision) as collision, avg(sps) as sps
from curve group by part order by step;
