-- Quality against speed: coverage of every policy of the leaderboard beside the decisions a second that it trained with;
-- on_front marks those that no other of their course beats in both. Who was trained on some of the scenes is left out.
create or replace view pareto_quality_speed as
with speeds as (
    select run_id, any_value(steps_per_second) as steps_per_second, max(step) as steps
    from metrics join run_speed using (run_id) group by run_id
),
flown as (
    select leaderboard.subject, leaderboard.model, leaderboard.course, leaderboard.decisions,
           leaderboard.c_vis_auc_percent, leaderboard.collisions_per_minute, evaluations.run_id,
           leaderboard.evaluation_id
    from leaderboard join evaluations using (evaluation_id)
    where leaderboard.kind <> 'pilot' and coalesce(leaderboard.scenes_trained_on, 0) = 0
),
both_known as (
    select flown.*, steps_per_second, speeds.steps from flown join speeds using (run_id) where steps_per_second > 0
)
select
    subject,
    model,
    c_vis_auc_percent,
    round(steps_per_second, 1) as steps_per_second,
    collisions_per_minute,
    steps,
    not exists (
        select 1 from both_known other
        where other.course = mine.course
          and other.c_vis_auc_percent >= mine.c_vis_auc_percent and other.steps_per_second >= mine.steps_per_second
          and (other.c_vis_auc_percent > mine.c_vis_auc_percent or other.steps_per_second > mine.steps_per_second)
    ) as on_front,
    decisions,
    course,
    run_id
from both_known mine
order by on_front desc, c_vis_auc_percent desc;
