"""A receiver of webhooks with Django, in one file. In a project of yours, take the view, its line in `urlpatterns` and the settings.

pip install chargehand django
CHARGEHAND_WEBHOOKS_SECRET=… python django_app.py
"""

import json
import os
from wsgiref.simple_server import make_server

from django.conf import settings
from django.core.cache import cache
from django.core.wsgi import get_wsgi_application
from django.http import HttpResponse, JsonResponse
from django.urls import path
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.http import require_POST

from chargehand.client import SignatureError, verify_webhook

settings.configure(
    ROOT_URLCONF=__name__,
    ALLOWED_HOSTS=["127.0.0.1"],
    DATA_UPLOAD_MAX_MEMORY_SIZE=4 << 20,  # whoever sends more is refused before anything is read
    CHARGEHAND_WEBHOOKS_SECRET=os.environ["CHARGEHAND_WEBHOOKS_SECRET"],
    # One process alone. Several need a cache that they share, such as Redis, or a table with a unique key.
    CACHES={
        "default": {
            "BACKEND": "django.core.cache.backends.locmem.LocMemCache",
            "OPTIONS": {"MAX_ENTRIES": 100_000},  # it would forget after 300
        }
    },
)
REMEMBERED_SECONDS = 3 * 86_400  # webhooks.give_up_seconds: nothing is sent again after that
HANDLING_SECONDS = 300  # longer than handle() ever takes; if its process dies, the webhook is taken again after that


@csrf_exempt  # the signature says who it is
@require_POST
def hook(request):
    try:
        told = verify_webhook(settings.CHARGEHAND_WEBHOOKS_SECRET, request.headers, request.body)
    except SignatureError as error:
        return JsonResponse({"error": str(error)}, status=401)
    # Deliveries come at least once. One that is answered well is never sent again, so that must wait until it was handled.
    key = f"webhook:{request.headers['webhook-id']}"
    if cache.add(key, "handling", HANDLING_SECONDS):
        try:
            handle(told)
        except BaseException:
            cache.delete(key)  # the answer is a 500, and the delivery is tried again
            raise
        cache.set(key, "done", REMEMBERED_SECONDS)
    elif cache.get(key) != "done":
        return HttpResponse(status=503)  # it is tried again, and by then we know how it went
    return HttpResponse(status=204)


def handle(told):
    """Yours. Be quick, or put it into a queue: the server waits for the answer."""
    print(json.dumps(told), flush=True)


urlpatterns = [path("hooks", hook)]
application = get_wsgi_application()

if __name__ == "__main__":
    make_server("127.0.0.1", int(os.environ.get("PORT", "9000")), application).serve_forever()
