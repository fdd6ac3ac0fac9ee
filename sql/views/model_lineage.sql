-- For every model version: its ancestors back to the first, nearest first (depth 0 is the version itself); child is the
-- version on the way that descends from the ancestor.
create or replace view model_lineage as
with recursive
edges as materialized (
    select distinct version, unnest(json_extract_string(coalesce(parents, '[]'), '$[*]')) as parent from models
),
-- Without a text of the whole way, which grows with every step. Ways that part and meet again are walked once from
-- there on, and no way without a circle is longer than there are versions.
walk as (
    select version, version as ancestor, 0 as depth, null::varchar as child from models
    union all
    select walk.version, edges.parent, walk.depth + 1, min(edges.version)
    from walk join edges on edges.version = walk.ancestor
    where edges.parent <> walk.version and walk.depth < (select count(*) from models)
    group by walk.version, edges.parent, walk.depth
),
nearest as (
    select version, ancestor, min(depth) as depth, arg_min(child, depth) as child from walk group by version, ancestor
),
held as (
    select version, string_agg(alias, ', ' order by alias) as aliases from aliases group by version
)
select
    nearest.version,
    nearest.ancestor,
    nearest.depth,
    nearest.child,
    models.training_source,
    models.reward_ema,
    models.run_id,
    models.step,
    models.checkpoint,
    models.created_at,
    held.aliases
from nearest
left join models on models.version = nearest.ancestor
left join held on held.version = nearest.ancestor
-- By the number: as text v999 comes after v1000.
order by version_number(nearest.version) desc nulls last, nearest.version desc, nearest.depth, nearest.ancestor;
