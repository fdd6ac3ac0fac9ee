-- Coverage by temporal core on one course, with a 95 % interval over training seeds; policies that know a scene are left out.
-- course: name or hash, see navi query course_list; by default the one of the champion
with flown as (
    select coalesce(models.temporal_core, runs.core) as core, coalesce(runs.seed, models.seed) as seed,
           100 * c_vis_auc as auc, collisions_per_minute
    from leaderboard
    join (select evaluation_id, run_id, c_vis_auc from evaluations) evaluations using (evaluation_id)
    left join runs on runs.run_id = evaluations.run_id
    left join models on models.version = leaderboard.model
    where chosen and leaderboard.kind <> 'pilot' and coalesce(leaderboard.scenes_trained_on, 0) = 0
),
seeds as (
    select core, seed, avg(auc) as auc, avg(collisions_per_minute) as collisions, count(*) as policies
    from flown where core is not null group by core, seed
),
means as (
    select core, count(*) as seeds, sum(policies)::bigint as policies, avg(auc) as mean,
           stddev_samp(auc) / sqrt(count(*)) as error, avg(collisions) as collisions
    from seeds group by core
)
select core, seeds, policies, round(mean, 1) as c_vis_auc_percent,
       round(percent_bound(mean, error, seeds - 1, -1), 1) as low,
       round(percent_bound(mean, error, seeds - 1, 1), 1) as high, round(collisions, 2) as collisions_per_minute
from means order by mean desc;
