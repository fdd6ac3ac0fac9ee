-- Every decision about an alias, with the lead in points of c_vis_auc and the 95 % interval that it was made by.
select date_trunc('second', decided_at) as decided_at, alias, version, promoted, previous_version, opponent,
       round(100 * mean_difference, 2) as lead_points, round(100 * low, 2) as low, round(100 * high, 2) as high, reason
from promotions order by promotions.decided_at desc;
