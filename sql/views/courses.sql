-- Course of every evaluation. Figures compare within a course alone: the same starts by the same protocol
-- (decisions, sensor, seed, task, …), whose hash older rows carry as that of their configuration.
create or replace view courses as
with flown as (
    select distinct evaluation_id, scene_hash || ':' || start as place from episodes
),
places as (
    select evaluation_id, string_agg(place, ',' order by place) as places from flown group by evaluation_id
)
select
    evaluations.evaluation_id,
    coalesce(eval_config_hash, config_hash) as protocol,
    left(md5(concat_ws('/', coalesce(eval_config_hash, config_hash), places)), 8) as course,
    coalesce(task, 'explore') as task,
    coalesce(
        scenes_trained_on, try_cast(json_extract_string(extra, '$.scenes_trained_on') as bigint)
    ) as scenes_trained_on
from evaluations left join places using (evaluation_id);
