-- The scenes on which the policies saw least.
select scene, avg(c_vis_auc_percent) as c_vis_auc_percent, avg(collisions_per_minute) as collisions_per_minute
from scene_results where subject not in ('random', 'forward-plus')
group by scene order by c_vis_auc_percent limit 10;
