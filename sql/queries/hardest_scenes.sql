-- The scenes of one course on which the policies saw least.
-- course: name or hash, see navi query course_list; by default the one of the champion
select scene, round(avg(scene_results.c_vis_auc_percent), 1) as c_vis_auc_percent,
       round(avg(scene_results.collisions_per_minute), 2) as collisions_per_minute, count(*) as policies
from scene_results join leaderboard using (evaluation_id)
where chosen and kind <> 'pilot'
group by scene order by c_vis_auc_percent limit 10;
