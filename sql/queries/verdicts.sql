-- Who is better than whom: every comparison in a sentence, the latest first.
select date_trunc('second', recorded_at) as compared_at, metric, a, b, round(mean_difference, 2) as difference,
       round(low, 2) as low, round(high, 2) as high, better, worse, seeds, scenes, "over", sentence
from comparisons order by recorded_at desc limit 40;
