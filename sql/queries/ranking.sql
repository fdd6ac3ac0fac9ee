-- Leaderboard of one course: coverage with its 95 % interval, and collisions a minute.
-- course: name or hash, see navi query course_list; by default the one of the champion
select rank, subject, c_vis_auc_percent, low, high, flight_code, course, split, model, scenes, collisions_per_minute
from leaderboard where chosen
order by rank nulls last, c_vis_auc_percent desc limit 40;
