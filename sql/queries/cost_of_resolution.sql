-- Cost of more rays in speed and memory.
select profile, resolution, rays, name, value, unit, times_smallest, times_rays, outcome from resolution_scaling;
