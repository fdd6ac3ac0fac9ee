-- Results of each subject on each scene, hardest scenes first; coverage in percent.
create or replace view scene_results as
select
    scene,
    subject,
    evaluation_id,
    count(*) as starts,
    round(100 * avg(c_vis_auc), 1) as c_vis_auc_percent,
    round(100 * avg(c_visit), 1) as c_visit_percent,
    round(avg(collisions_per_minute), 2) as collisions_per_minute,
    round(avg(path_length_m), 1) as path_length_m
from episodes
group by scene, subject, evaluation_id
order by avg(avg(c_vis_auc)) over (partition by scene), scene, c_vis_auc_percent desc;
