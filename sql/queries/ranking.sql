-- Who explores best on the course that was flown last: coverage with its 95 % interval, and collisions a minute.
select rank, subject, model, c_vis_auc_percent, low, high, collisions_per_minute, scenes, episodes, decisions, course
from leaderboard where course = (select course from leaderboard order by recorded_at desc limit 1)
order by rank nulls last, c_vis_auc_percent desc;
