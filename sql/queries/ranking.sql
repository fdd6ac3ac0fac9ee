-- Who explores best on one course: coverage with its 95 % interval, and collisions a minute.
-- course: name or hash, see navi query course_list; by default the one of the champion
select rank, subject, model, c_vis_auc_percent, low, high, collisions_per_minute, scenes, split, course,
       flight_code
from leaderboard where chosen
order by rank nulls last, c_vis_auc_percent desc limit 40;
