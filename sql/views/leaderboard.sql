-- Who explores best: the latest evaluation of every subject, ranked among those flown on the same scenes and starts.
create or replace view leaderboard as
with latest as (
    select * from evaluations
    qualify row_number() over (
        partition by subject, coalesce(subject_sha256, ''), scenes_hash, config_hash order by recorded_at desc
    ) = 1
)
select
    row_number() over (partition by scenes_hash, config_hash order by c_vis_auc desc) as rank,
    subject,
    subject_kind as kind,
    round(100 * c_vis_auc, 1) as c_vis_auc_percent,
    round(100 * c_vis, 1) as c_vis_percent,
    round(100 * c_visit, 1) as c_visit_percent,
    round(collisions_per_minute, 2) as collisions_per_minute,
    round(path_length_m, 1) as path_length_m,
    scenes,
    episodes,
    split,
    (select string_agg(version, ', ' order by version) from models where models.sha256 = latest.subject_sha256) as model,
    evaluation_id,
    recorded_at
from latest
order by max(recorded_at) over (partition by scenes_hash, config_hash) desc, scenes_hash, config_hash, rank;
