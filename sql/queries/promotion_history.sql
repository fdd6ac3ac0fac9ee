-- Every decision about an alias, with the interval it was made by.
select decided_at, alias, version, promoted, mean_difference, low, high, reason
from promotions order by decided_at desc;
