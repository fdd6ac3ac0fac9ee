-- Leaderboard: the latest evaluation of every subject, ranked among those of one course (the same starts, the
-- same protocol). Who was trained on some of the scenes stands below, without a rank: there it shows what it remembers.
-- Flights that had to confirm a win are those of one pair alone and are left out; `promotions` has them.
-- Flights of one flight_code were flown by the same code; where it differs, fly the older ones again.
-- Coverage in percent, means over scenes. With a limited sensor c_seen_auc_percent ranks, else c_vis_auc_percent; low and
-- high bound its 95 % interval, within 0 and 100; of fewer than six flights none is given. The chosen course comes first:
-- the pinned one (see course_list), or that of --course.
create or replace view leaderboard as
with latest as (
    select
        evaluations.* exclude (task, scenes_trained_on), course, courses.scenes_trained_on,
        coalesce(courses.scenes_trained_on, 0) > 0 as remembers,
        coalesce(c_seen_auc_percent, 100 * c_vis_auc) as coverage,
        case when c_seen_auc_percent is null then c_vis_auc_low_percent
             else json_extract(extra, '$.c_seen_auc_low_percent')::double end as coverage_low,
        case when c_seen_auc_percent is null then c_vis_auc_high_percent
             else json_extract(extra, '$.c_seen_auc_high_percent')::double end as coverage_high
    from evaluations join courses using (evaluation_id)
    where courses.task = 'explore' and not coalesce(confirms, false)
    qualify row_number() over (partition by subject, weights_hash, course order by recorded_at desc) = 1
)
select
    case when not remembers then row_number() over (partition by course, remembers order by coverage desc) end as rank,
    subject,
    subject_kind as kind,
    coalesce(
        model_version,
        (select max_by(version, version_number(version)) from models where models.weights_hash = latest.weights_hash)
    ) as model,
    round(100 * c_vis_auc, 1) as c_vis_auc_percent,
    case when episodes >= 6 then greatest(round(coverage_low, 1), 0) end as low,
    case when episodes >= 6 then least(round(coverage_high, 1), 100) end as high,
    round(c_seen_auc_percent, 1) as c_seen_auc_percent,
    round(100 * c_vis, 1) as c_vis_percent,
    round(100 * c_visit, 1) as c_visit_percent,
    round(collisions_per_minute, 2) as collisions_per_minute,
    round(path_length_m, 1) as path_length_m,
    scenes,
    scenes_trained_on,
    episodes,
    max_steps as decisions,
    sensor,
    split,
    course,
    json_extract_string(extra, '$.flight_code') as flight_code,
    evaluation_id,
    date_trunc('second', recorded_at) as recorded_at,
    course is not distinct from (select course from chosen_course) as chosen
from latest
order by chosen desc, max(recorded_at) over (partition by course) desc, course, rank nulls last, coverage desc;
