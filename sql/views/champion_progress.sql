-- Champion after champion on every course, with its lead over the champion before it on the same starts: points of
-- c_vis_auc_percent with Student's 95 % interval over scenes. A champion that did not fly a course is not on it.
create or replace view champion_progress as
with flown as (
    select evaluations.*, courses.course as on_course
    from evaluations join courses using (evaluation_id)
    where not coalesce(confirms, false) and courses.task = 'explore'
    qualify row_number() over (partition by weights_hash, courses.course order by evaluations.recorded_at desc) = 1
),
reigns as (
    select on_course as course, version, since, until, flown.*,
           lag(evaluation_id) over (partition by on_course order by since) as evaluation_before
    from champion_reigns join models using (version) join flown using (weights_hash)
),
scene_means as (
    select evaluation_id, scene, 100 * avg(c_vis_auc) as auc from episodes group by evaluation_id, scene
),
gains as (
    select reigns.course, reigns.since, avg(now.auc - earlier.auc) as gain, count(*) as scenes,
           stddev_samp(now.auc - earlier.auc) / sqrt(count(*)) as error
    from reigns
    join scene_means now on now.evaluation_id = reigns.evaluation_id
    join scene_means earlier on earlier.evaluation_id = evaluation_before and earlier.scene = now.scene
    group by reigns.course, reigns.since
)
select
    reigns.course,
    row_number() over (partition by reigns.course order by reigns.since) as number,
    version,
    subject,
    date_trunc('second', reigns.since) as since,
    date_trunc('second', until) as until,
    round(100 * c_vis_auc, 1) as c_vis_auc_percent,
    case when episodes >= 6 then greatest(round(c_vis_auc_low_percent, 1), 0) end as low,
    case when episodes >= 6 then least(round(c_vis_auc_high_percent, 1), 100) end as high,
    round(collisions_per_minute, 2) as collisions_per_minute,
    round(gain, 2) as gain_points,
    round(gain - student_t(gains.scenes - 1) * error, 2) as gain_low,
    round(gain + student_t(gains.scenes - 1) * error, 2) as gain_high,
    evaluation_id
from reigns left join gains on gains.course = reigns.course and gains.since = reigns.since
order by reigns.course, reigns.since;
