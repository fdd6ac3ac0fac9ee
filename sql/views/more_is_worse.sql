-- Whether more of a unit is worse: times, memory and errors; of speeds and rewards more is better.
create or replace macro more_is_worse(unit) as
    unit in ('s', 'ms', 'us', 'min', 'h', 'MB', 'MiB', 'GiB', 'bytes', 'voxel');
