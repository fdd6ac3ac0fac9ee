-- The scenes on which the policies saw least, under the protocol of the latest policy that was flown.
with flown as (
    select evaluation_id, eval_config_hash, recorded_at from evaluations
    where subject_kind = 'policy' and coalesce(task, 'explore') = 'explore'
)
select scene, round(avg(100 * c_vis_auc), 1) as c_vis_auc_percent,
       round(avg(episodes.collisions_per_minute), 2) as collisions_per_minute,
       count(distinct evaluation_id) as evaluations, count(*) as flights
from episodes join flown using (evaluation_id)
where eval_config_hash is not distinct from (select max_by(eval_config_hash, recorded_at) from flown)
group by scene order by avg(c_vis_auc), scene limit 10;
