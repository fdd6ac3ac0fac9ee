-- The scenes on which the policies saw least, of the course that a policy flew last.
with policies as (select * from leaderboard where kind <> 'pilot')
select scene, round(avg(scene_results.c_vis_auc_percent), 1) as c_vis_auc_percent,
       round(avg(scene_results.collisions_per_minute), 2) as collisions_per_minute, count(*) as policies
from scene_results join policies using (evaluation_id)
where course = (select course from policies order by recorded_at desc limit 1)
group by scene order by c_vis_auc_percent limit 10;
