-- The policies with the highest coverage on one course, of those that never trained on its scenes.
-- course: name or hash, see navi query course_list; by default the one of the champion
select subject, model, c_vis_auc_percent, low, high, collisions_per_minute, scenes, episodes, decisions, sensor, split,
       course
from leaderboard where chosen and kind <> 'pilot' and scenes_trained_on = 0
order by c_vis_auc_percent desc limit 5;
