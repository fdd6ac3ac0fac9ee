-- Policies that no other of their course beats in both coverage and training speed.
select subject, model, c_vis_auc_percent, steps_per_second, steps, decisions, course
from pareto_quality_speed where on_front;
