-- The policy with the highest coverage on scenes it never trained on.
select subject, model, c_vis_auc_percent, collisions_per_minute, episodes
from leaderboard where kind = 'policy' order by c_vis_auc_percent desc limit 5;
