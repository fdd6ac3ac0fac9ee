-- Flights with the least coverage, and their starts.
select subject, scene, start, round(100 * c_vis_auc, 1) as c_vis_auc_percent, collisions, path_length_m,
       round(start_x, 2) as x, round(start_z, 2) as z, evaluation_id
from episodes where subject not in ('random') and coalesce(task, 'explore') = 'explore'
order by c_vis_auc limit 20;
