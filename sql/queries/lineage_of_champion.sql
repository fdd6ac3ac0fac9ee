-- The champion and every model it descends from.
with recursive
edges as materialized (
    select version, unnest(json_extract_string(coalesce(parents, '[]'), '$[*]')) as parent from models
),
-- From one version alone each ancestor is met once, where model_lineage walks from all of them.
walk(ancestor, depth) using key (ancestor) as (
    select version, 0 from aliases where alias = 'champion'
    union
    select edges.parent, min(walk.depth) + 1
    from walk join edges on edges.version = walk.ancestor
    where edges.parent not in (select ancestor from recurring.walk)
    group by edges.parent
)
select walk.depth, walk.ancestor, models.training_source, models.reward_ema, models.created_at
from walk left join models on models.version = walk.ancestor
order by depth, ancestor;
