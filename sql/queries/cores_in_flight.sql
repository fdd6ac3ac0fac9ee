-- Flights by temporal core, course by course: coverage, success at goals, collisions; means over policies.
with flown as (
    select evaluations.*, courses.course, courses.task as flown_for, models.temporal_core
    from evaluations join courses using (evaluation_id)
    join models on models.weights_hash = evaluations.weights_hash
    where not coalesce(confirms, false) and coalesce(courses.scenes_trained_on, 0) = 0
    -- One policy may have several evaluations of a course, and several versions of the same weights.
    qualify row_number() over (partition by course, evaluations.weights_hash order by evaluations.recorded_at desc) = 1
)
select flown_for as task, course, temporal_core, count(*) as policies, round(100 * avg(c_vis_auc), 1) as c_vis_auc_percent,
       round(100 * avg(success), 1) as success_percent, round(avg(collisions_per_minute), 2) as collisions_per_minute,
       any_value(max_steps) as decisions
from flown group by flown_for, course, temporal_core
order by max(max(recorded_at)) over (partition by course) desc, course, c_vis_auc_percent desc limit 40;
