"""`minfer serve` on many machines, as a Ray Serve application. Needs the extras `ray` and `server`.

from ray import serve
from minfer.deploy import application

serve.run(application("smollm2", replicas=2))
"""

from minfer.deploy.application import application, build

__all__ = ["application", "build"]
