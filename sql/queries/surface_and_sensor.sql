-- Floor and surface that every subject saw, its sensor, and its collisions in the middle of its flights.
select subject, sensor, round(100 * c_vis_auc, 1) as c_vis_auc_percent, round(c_surf_auc_percent, 1) as c_surf_auc_percent,
       round(c_surf_final_percent, 1) as c_surf_percent, round(c_surf_m2, 1) as c_surf_m2,
       round(collisions_per_minute_median, 2) as collisions_per_minute_median,
       round(collisions_per_100m_median, 2) as collisions_per_100m_median,
       c_vis_steps_to_90_median, scenes, courses.scenes_trained_on, episodes, max_steps as decisions, course, evaluation_id
from evaluations join courses using (evaluation_id) where courses.task = 'explore'
order by max(recorded_at) over (partition by course) desc, course, c_vis_auc desc limit 30;
