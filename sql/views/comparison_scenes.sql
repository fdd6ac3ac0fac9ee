-- On how many of the scenes of a comparison each side was trained: there it shows what it remembers. Of several seeds
-- the one that knew most counts.
create or replace view comparison_scenes as
with sides as (
    select distinct comparison_id, 'a' as side, unnest(json_extract_string(evaluations, '$.a[*]')) as evaluation_id
    from comparisons
    union all
    select distinct comparison_id, 'b', unnest(json_extract_string(evaluations, '$.b[*]')) from comparisons
)
select
    comparison_id,
    max(scenes_trained_on) filter (side = 'a') as a_trained_on,
    max(scenes_trained_on) filter (side = 'b') as b_trained_on
from sides left join courses using (evaluation_id)
group by comparison_id;
