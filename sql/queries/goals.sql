-- Who reaches goals, and how straight: success, SPL and SoftSPL of every point-goal evaluation.
select subject, round(100 * success, 1) as success_percent, round(spl, 3) as spl, round(soft_spl, 3) as soft_spl,
       round(goal_distance, 2) as left_m, round(collisions_per_minute, 2) as collisions_per_minute, scenes, episodes,
       evaluation_id
from evaluations where task = 'point_goal' order by spl desc limit 30;
