-- The policies with the highest coverage on scenes they never trained on, of the course that such a policy flew last.
with unseen as (select * from leaderboard where kind <> 'pilot' and scenes_trained_on = 0)
select subject, model, c_vis_auc_percent, low, high, collisions_per_minute, scenes, episodes, decisions, sensor, split,
       course
from unseen where course = (select course from unseen order by recorded_at desc limit 1)
order by c_vis_auc_percent desc limit 5;
