-- Who explores best: the latest evaluation of every subject, ranked among those flown from the same starts.
-- Coverage in percent, means over scenes; low and high bound the 95 % interval of c_vis_auc_percent.
create or replace view leaderboard as
with flown as (
    select distinct evaluation_id, scene_hash || ':' || start as place from episodes
),
courses as (
    select evaluation_id, left(md5(string_agg(place, ',' order by place)), 8) as course from flown group by all
),
latest as (
    select evaluations.*, courses.course
    from evaluations left join courses using (evaluation_id)
    qualify row_number() over (
        partition by subject, weights_hash, course, eval_config_hash order by recorded_at desc
    ) = 1
)
select
    row_number() over (partition by course, eval_config_hash order by c_vis_auc desc) as rank,
    subject,
    subject_kind as kind,
    coalesce(
        model_version,
        (select max(version) from models where models.weights_hash = latest.weights_hash)
    ) as model,
    round(100 * c_vis_auc, 1) as c_vis_auc_percent,
    round(c_vis_auc_low_percent, 1) as low,
    round(c_vis_auc_high_percent, 1) as high,
    round(100 * c_vis, 1) as c_vis_percent,
    round(100 * c_visit, 1) as c_visit_percent,
    round(collisions_per_minute, 2) as collisions_per_minute,
    round(path_length_m, 1) as path_length_m,
    scenes,
    episodes,
    split,
    course,
    evaluation_id,
    date_trunc('second', recorded_at) as recorded_at
from latest
order by max(recorded_at) over (partition by course, eval_config_hash) desc, course, eval_config_hash, rank;
