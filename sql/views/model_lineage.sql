-- For every model version: its ancestors back to the first, nearest first (depth 0 is the version itself).
create or replace view model_lineage as
with recursive
edges as (
    select version, unnest(json_extract_string(coalesce(parents, '[]'), '$[*]')) as parent from models
),
walk as (
    select version, version as ancestor, 0 as depth, version as path from models
    union all
    select walk.version, edges.parent, walk.depth + 1, walk.path || ' <- ' || edges.parent
    from walk join edges on edges.version = walk.ancestor
    where walk.depth < 1000
)
select
    walk.version,
    walk.ancestor,
    walk.depth,
    walk.path,
    models.training_source,
    models.reward_ema,
    models.run_id,
    models.step,
    models.checkpoint,
    models.created_at,
    (select string_agg(alias, ', ' order by alias) from aliases where aliases.version = walk.ancestor) as aliases
from walk left join models on models.version = walk.ancestor
order by walk.version desc, walk.depth;
