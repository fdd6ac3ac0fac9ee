-- Point-goal evaluations: success, SPL and SoftSPL of every point-goal evaluation, course by course.
select subject, round(100 * success, 1) as success_percent, round(spl, 3) as spl, round(soft_spl, 3) as soft_spl,
       round(goal_distance, 2) as left_m, round(collisions_per_minute, 2) as collisions_per_minute, scenes,
       courses.scenes_trained_on, episodes, max_steps as decisions, course, evaluation_id
from evaluations join courses using (evaluation_id) where courses.task = 'point_goal'
order by max(recorded_at) over (partition by course) desc, course, spl desc limit 30;
