-- The champion and every model it descends from.
select lineage.depth, lineage.ancestor, lineage.training_source, lineage.reward_ema, lineage.created_at
from model_lineage as lineage join aliases on aliases.version = lineage.version
where aliases.alias = 'champion' order by depth;
