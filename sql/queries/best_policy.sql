-- The policies with the highest coverage on scenes they never trained on.
select subject, model, c_vis_auc_percent, low, high, collisions_per_minute, episodes, split
from leaderboard where kind <> 'pilot' order by c_vis_auc_percent desc limit 5;
