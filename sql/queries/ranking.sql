-- Who explores best, course by course, the one flown last first: coverage with its 95 % interval, and collisions a minute.
select rank, subject, model, c_vis_auc_percent, low, high, collisions_per_minute, scenes, split, course,
       flight_code
from leaderboard
order by max(recorded_at) over (partition by course) desc, course, rank nulls last, c_vis_auc_percent desc limit 40;
